"""What runs inside the jail: started with ``python -S`` and nothing but the standard library.

``supervisor`` is the process outside of the jail, which cleans up, and the jail's first, the zygote, whose ``runs``
forks a process for each program, or an ``init`` with a PID namespace of its own does. ``launch`` is that process until
it becomes the program or the interpreter of a session (``program``). ``jail`` makes and bounds the place of a run;
where there are no namespaces, ``workspace`` replaces its file system and restricts access to files.
"""
