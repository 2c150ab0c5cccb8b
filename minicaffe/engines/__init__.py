"""What computes an operation: engines, the choice between them, epilogues, and the layouts in which they leave arrays."""
