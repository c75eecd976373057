"""What runs inside a sandbox container; the host sends these files, nothing is installed in the image.

Python 3.11 or newer and the standard library are all that it needs.
"""
