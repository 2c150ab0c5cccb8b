"""Intel's oneDNN, opened at run time: the library, its layouts and the common code of its primitives."""
