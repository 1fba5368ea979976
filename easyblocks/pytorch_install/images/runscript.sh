#!/bin/sh
exec "${@:-python}"
