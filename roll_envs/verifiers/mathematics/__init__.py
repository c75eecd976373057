"""``math``: final answers of mathematics, compared exactly.

``final`` finds the answer in a text, ``tidy`` normalises its notation, ``structure`` and ``units`` parse what kind of
answer it is (a number with a unit, a list, an interval, a matrix, ...), ``grading`` compares two answers and
``symbols`` two expressions, with math-verify's parser and SymPy. The last two run in worker processes only.
"""

__all__: list[str] = []
