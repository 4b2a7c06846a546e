"""Program texts that run inside sandboxes, on the sandbox's own Python (3.8 or later) and its standard library alone.

They are sent into the sandbox as text and run there in one namespace: ``plain``, then ``channel``, then either
``candidate`` or ``grader``. Nothing here may import another module of this package when it runs.
"""
