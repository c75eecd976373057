"""What runs inside the jail: started with ``python -S`` and nothing but the standard library.

``supervisor`` runs outside the jail and cleans up. ``zygote`` is the first process of the jail; its ``runs`` forks a
process for each program, or an ``init`` with a PID namespace of its own does. ``launch`` is that process until it
becomes the program or the interpreter of a session (``program``). Where there are no namespaces,
``workspace`` replaces the file system of the run and restricts access to files.
"""
