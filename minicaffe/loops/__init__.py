"""Loops over arrays for both compilers: sums in double precision, channels in lanes, strided copies."""
