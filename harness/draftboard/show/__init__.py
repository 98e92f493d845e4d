"""The room of pages: tables, charts and the site, from records and verdicts. Imports no torch."""
