"""``code``: judges programs in a sandbox, to which expected values are never sent.

``cases`` reads the tests, ``session`` holds the jails of the answer and of the tests and hands messages from one to the
other, ``inside`` is what runs in them, ``outputs`` compares printed output, ``verifier`` is the verifier itself.
"""

__all__: list[str] = []
