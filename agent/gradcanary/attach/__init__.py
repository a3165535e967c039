"""Watching a training that runs already, and leaving it again: ``gradcanary attach``, ``detach``, ``ps``.

The command's process runs ``commands`` and ``actions``. It reads ``processes``, checks by ``preflight``, follows each
process as a ``target``, writes a ``request`` and puts a line of code into the process by ``injection``. The process
itself runs ``bootstrap``, and then ``resident``, which stays until ``detach``.
"""
