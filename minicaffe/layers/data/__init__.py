"""Layer types that bring data into a net or take it out, a module each."""
