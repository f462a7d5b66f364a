# Pageant on the CPU. Build it in the repository: docker build --tag pageant:latest .
# Kernels are compiled at the first start, for the processor that is there, and kept in /home/pageant.
FROM python:3.12-slim-bookworm

# The compiler is for kernels. Its version is that of the base image's release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home pageant

WORKDIR /opt/pageant
COPY . .
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch==$(sed -n 's/^torch==//p' constraints.txt)" \
    && pip install --no-cache-dir --constraint constraints.txt .

USER 10001
ENV HOME=/home/pageant
WORKDIR /home/pageant
EXPOSE 8000
ENTRYPOINT ["pageant"]
CMD ["serve", "--host", "0.0.0.0"]
