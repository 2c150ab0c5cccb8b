"""What tools/fuzz.py is made of: seeds (files.py), mutations (text.py, octets.py), what is run (targets.py), workers (pool.py)."""
