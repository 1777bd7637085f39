"""Web sites over two lines: the evaluation of [host] §4 to §6 with a browser."""
