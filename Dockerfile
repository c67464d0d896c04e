# pytest-precision with torch for the CPU, to try it and to compare recordings:
#   docker build -t pytest-precision .
#   docker run --rm -v "$PWD:/work" pytest-precision compare after before
FROM python:3.12-slim

# Apart from the package, so that a change of it installs torch no second time.
RUN useradd --create-home --uid 1000 user \
    && pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
COPY . /src
RUN pip install --no-cache-dir /src && rm -r /src

USER 1000
WORKDIR /work
ENTRYPOINT ["pytest-precision"]
CMD ["--help"]
