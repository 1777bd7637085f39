"""Web sites of the page load experiments: a corpus, its files, and programs that load its pages."""
