"""What one looks at a net with: its table of layers, schedule, costs and times. Modules are imported when they are used."""
