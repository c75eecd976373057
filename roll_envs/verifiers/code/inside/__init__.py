"""What runs in the two jails of a verdict, sent there as source text, so each file needs the standard library only.

``answer`` serves the answer's functions in one jail, ``proxies`` stands for them in the other, where ``tests`` runs the
tests: ``reading`` reads their code, ``compare`` compares, ``pytest_run`` runs test functions and classes, ``stand_ins``
takes the answer's place. ``values`` is the form in which values cross, ``shared`` how files and the like do, and
``patches`` how mocks do.
"""

__all__: list[str] = []
