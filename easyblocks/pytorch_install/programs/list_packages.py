"""
Prints the packages of an image as JSON.
"""
import glob
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys


def python_packages():
    """Name and version of packages on this Python's own search path."""
    found = set()
    for package in importlib.metadata.distributions():
        try:
            found.add((package.metadata['Name'], package.version))
        except (KeyError, OSError, TypeError):  # remains of a package; the error depends on the version of Python
            continue
    return [{'name': name, 'version': version} for name, version in sorted(found, key=str) if name and version]


def conda_packages():
    """Packages of this Python's conda environment."""
    packages = []
    for path in sorted(glob.glob(os.path.join(sys.prefix, 'conda-meta', '*.json'))):
        try:
            with open(path) as file:
                record = json.load(file)
        except ValueError:
            continue
        packages.append({name: record.get(name) for name in ('name', 'version', 'build', 'channel')})
    return [package for package in packages if package['name'] and package['version']]


def debian_packages():
    """Installed packages in dpkg's database."""
    packages = []
    with open('/var/lib/dpkg/status', encoding='utf-8', errors='replace') as file:
        for paragraph in file.read().split('\n\n'):
            fields = dict(line.split(': ', 1) for line in paragraph.splitlines() if ': ' in line and line[0] != ' ')
            if fields.get('Status', '').endswith(' installed') and {'Package', 'Version'} <= set(fields):
                packages.append({'name': fields['Package'], 'version': fields['Version'],
                                 'architecture': fields.get('Architecture')})
    return packages


def rpm_packages():
    """Installed packages in rpm's database."""
    output = subprocess.run(['rpm', '-qa', '--qf', '%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\n'],
                            stdout=subprocess.PIPE, check=True, universal_newlines=True).stdout
    return [dict(zip(('name', 'version', 'architecture'), line.split('\t'))) for line in sorted(output.splitlines())]


def distribution():
    """The lines of os-release."""
    try:
        with open('/etc/os-release') as file:
            lines = [line.strip().partition('=') for line in file]
    except OSError:
        return {}
    return {name: value.strip('"\'') for name, _, value in lines if value}


packages = {'python': python_packages(), 'conda': conda_packages()}
if os.path.isfile('/var/lib/dpkg/status'):
    packages['deb'] = debian_packages()
elif shutil.which('rpm'):
    packages['rpm'] = rpm_packages()
json.dump({'python': sys.executable, 'python_version': sys.version.split()[0],
           'distribution': distribution(), 'packages': packages}, sys.stdout)
