"""One module an op: ``CASES`` (arguments by case name) and ``bytes_moved(args)``, read and written once."""
