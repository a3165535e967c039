"""Watching a training that runs already, and leaving it again: ``gradcanary attach``, ``detach``, ``ps``.

``commands`` is what is typed, ``processes`` what the system says of a process, ``refusals`` why not to touch it. ``gate``
and ``injection`` get a line of code into it; ``arrival`` is what that line runs in there, ``resident`` what stays until
``detach``, and ``control`` the socket between the two processes.
"""
