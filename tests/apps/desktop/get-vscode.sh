#!/bin/bash
# SPDX-License-Identifier: MIT
# Puts VS Code (code-server's build of it, which is not in Debian) where the tests look for it: from npm's
# registry, native modules compiled here. Needs node 20 with its headers and npm.
set -euo pipefail
export npm_config_nodedir=/usr npm_config_yes=true npm_config_audit=false npm_config_fund=false

mkdir -p /opt/ckpt-vscode
cd /opt/ckpt-vscode
[ -f package.json ] || echo '{"private": true}' >package.json
npm install --ignore-scripts code-server@4.100.3
npm rebuild argon2
cd node_modules/code-server/lib/vscode
npm install --omit=dev --ignore-scripts --legacy-peer-deps
(cd extensions && npm install --omit=dev --ignore-scripts --legacy-peer-deps)
npm rebuild node-pty native-watchdog @vscode/spdlog @parcel/watcher
ln -sfn node_modules node_modules.asar
