"""Pages: from records to HTML files. Nothing in here measures or judges."""
