"""What is measured, on all ranks: a machine, for its file (machine, with links, products, attention, calls), and strategies, for a
search (search: of an operator; program: of a user's program)."""
