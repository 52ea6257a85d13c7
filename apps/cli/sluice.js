#!/usr/bin/env node
// Starts the command line from any Node: Sluice itself needs the release that is installed with its packages.
import { spawn } from 'node:child_process';
import module, { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

if (Number(process.versions.node.split('.')[0]) >= 24) {
  // Caching compiled modules makes a command start three times faster. Node checks each against its source.
  module.enableCompileCache(fileURLToPath(new URL('../../node_modules/.cache/node-compile', import.meta.url)));
  await import('./main.ts');
} else {
  const folder = path.dirname(createRequire(import.meta.url).resolve('node/package.json'));
  const child = spawn(path.join(folder, 'bin/node'), [fileURLToPath(import.meta.url), ...process.argv.slice(2)], {
    stdio: 'inherit',
  });
  // A terminal sends Ctrl-C to both processes. The child handles it; forwarding it would count as a second Ctrl-C.
  process.on('SIGINT', () => undefined);
  for (const signal of ['SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  child.on('error', (error) => {
    process.stderr.write(
      `error: Sluice's Node.js does not start: ${error.message}. Run npm ci in the folder of Sluice.\n`,
    );
    process.exitCode = 1;
  });
  child.on('exit', (code) => process.exit(code ?? 1));
}
