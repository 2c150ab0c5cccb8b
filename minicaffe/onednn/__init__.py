"""Intel's oneDNN, opened at run time: the library, its layouts and what primitives of engine ONEDNN have in common."""
