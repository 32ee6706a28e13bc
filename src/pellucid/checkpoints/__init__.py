"""Numbers to disk and back. The only room that knows files, hubs and the reference's names for things."""
