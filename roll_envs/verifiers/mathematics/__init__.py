"""``math``: final answers of mathematics, compared exactly.

``final`` finds the answer in a text, ``tidy`` removes what is only notation, ``structure`` and ``units`` read what kind
of thing it is (a number with a unit, a list, an interval, a matrix, ...), ``grading`` compares two of a kind and
``symbols`` two expressions, with math-verify's parser and SymPy. The last two run in worker processes only.
"""

__all__: list[str] = []
