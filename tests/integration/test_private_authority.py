"""Downloads in the image from a server whose certificate is signed by a private authority, as behind a site's proxy."""

import functools
import http.server
import shutil
import ssl
import subprocess
import threading

import pytest
from test_module import wheel

pytestmark = pytest.mark.testbed

#: Commands that create an authority and a certificate that it signs.
CERTIFICATES = """openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem
openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr
echo subjectAltName=DNS:localhost >names
openssl x509 -req -days 2 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out server.pem"""


@pytest.fixture
def index(work):
    """Address of a package index on this host; the authority's certificate is `ca.pem` in `work`."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl to make certificates with")
    subprocess.run(["bash", "-ec", CERTIFICATES], cwd=work, check=True, capture_output=True)
    directory = work / "index" / "extra-package"
    directory.mkdir(parents=True)
    wheel(directory)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=work / "index")
    server = http.server.ThreadingHTTPServer(("localhost", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(work / "server.pem", work / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://localhost:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_pip_and_python_in_the_image_trust_the_authority_of_the_hosts_variables(
    testbed, container, index, work, tmp_path
):
    output = testbed.run(
        f"""export HOME={tmp_path} no_proxy=localhost PIP_CERT={work}/ca.pem SSL_CERT_FILE={work}/ca.pem
unset REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_DIR PIP_FIND_LINKS
cd /  # the image has this directory, but not that of the files
module load {container}
singularity exec $SIF pip install --user --index-url {index} extra-package
singularity exec $SIF python -c 'from urllib.request import urlopen; print(urlopen("{index}").status)'"""
    )
    assert "Successfully installed extra-package-1.0" in output
    assert output.endswith("200\n")
