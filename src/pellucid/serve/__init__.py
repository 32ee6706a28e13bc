"""Serves the page of a long text to this machine only."""

from pellucid.serve.page import PageServer as PageServer
from pellucid.serve.page import serve_page as serve_page
