"""Images of registries behind a login."""

import pytest
from image_site import make_layer

from testbed.stand_ins.registry import Registry

pytestmark = [pytest.mark.testbed, pytest.mark.early]

PASSWORD = "s3cret-of-the-registry"  # noqa: S105 (of a registry that lives as long as a test)


def test_a_registry_with_a_login_is_used_and_no_log_has_the_password(site, tmp_path, work):
    home = work / "home"
    home.mkdir()
    with Registry(tmp_path / "private", login=f"user:{PASSWORD}") as private:
        digest = private.add_layers([make_layer(tmp_path / "layer", 1000)])
        lines = f"image = 'docker://{private.address}/tiny/private@{digest}'"
        environ = {"HOME": str(home)}
        assert "required. Check the digest, the network and your login" in site.refuse(lines, environ=environ)
        environ.update(APPTAINER_DOCKER_USERNAME="user", APPTAINER_DOCKER_PASSWORD=PASSWORD)
        logs = work / "logs"
        message = site.install(lines, f"--fetch --tmpdir={logs} --disable-cleanup-tmpdir", environ=environ)
    assert PASSWORD not in message
    kept = [path for path in [*logs.rglob("*.log"), *site.images.iterdir()] if path.is_file()]
    assert any(path.suffix == ".log" for path in kept)
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]
