"""Watching a training that runs already, and leaving it again: ``gradcanary attach``, ``detach``, ``ps``.

The command's process runs ``actions``. It reads ``processes``, checks by ``preflight``, and follows each process as a
``target``. It writes a ``request``, and puts a line of code into the process by ``injection``. The process itself runs
``bootstrap``, and then ``resident``, which stays until ``detach``.
"""
