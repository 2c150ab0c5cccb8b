"""Layer types of the SSD fork, a module each."""
