"""``code``: programs judged in a sandbox that never learns what is expected of them.

``answers`` takes the code out of a text, ``cases`` reads the tests, ``values`` carries values out of the jail, ``jail``
asks for them call by call, ``outside`` evaluates test code around those calls, ``outputs`` compares what programs
print, ``verifier`` is what users make.
"""

__all__: list[str] = []
