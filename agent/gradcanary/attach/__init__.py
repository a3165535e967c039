"""Watching a training that runs already, and leaving it again: ``gradcanary attach``, ``detach``, ``ps``.

``commands`` is what may be typed and ``actions`` what it does; ``processes`` is what the system says of a process,
``refusals`` why not to touch it. ``gate`` and ``injection`` get a line of code into it; ``arrival`` is what that line
runs in there, by an ``errand`` of the main thread; ``resident`` is what stays until ``detach``, ``late_watch`` its
watch, ``report`` what it tells, and ``control`` the socket between the two processes. Outside, ``visit`` follows one
process from the request to its answer, and ``words`` says it.
"""
