"""``code``: judges programs in a sandbox, to which expected values are never sent.

``answers`` extracts the code from a text, ``cases`` reads the tests, ``session`` runs the candidate's code in the
sandbox and evaluates its calls one by one, ``values`` encodes their results, ``interpreter`` and ``expressions``
evaluate test code around those calls with the help of ``scope`` and ``exchange``, ``outputs`` compares printed output,
``verifier`` is the verifier itself.
"""

__all__: list[str] = []
