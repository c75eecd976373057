"""What runs inside the cage: a program of its own, started with ``python -I -S`` and nothing but the standard library.

``keeper`` stands outside and cleans up. ``zygote`` is the first process of the jail; its ``runs`` forks programs into
places of their own, or an ``init`` with a process namespace does. ``ready`` is the process that becomes the program
(``program``, ``cells``). ``ground`` stands for the file system, and ``landlock`` for walls, where no namespaces are to
be had.
"""
