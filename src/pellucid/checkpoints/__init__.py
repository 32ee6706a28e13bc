"""Model weights on disk: loading and saving. The only room that knows files, hubs and the reference's names."""
