"""What runs inside the cage: a program of its own, started with ``python -I -S`` and nothing but the standard library.

``keeper`` stands outside and cleans up, ``zygote`` is the first process of the jail, ``init`` the first of each run,
``python_program``, ``cells`` and ``other_program`` are what becomes the untrusted process. ``sandboxes.local`` imports
only ``wire`` and ``seccomp`` from here.
"""
