"""Tables of a net: layers, schedule, costs, times. Modules are imported when they are used."""
