"""Render report.json as report.html, one self-contained file.

It reads without script and without style, offline, and under a policy that forbids both; all text
of others is escaped by the template engine. `render.write_page` is the way in. A session imports
this package when its tests have ended, since no test should wait for jinja2.
"""
