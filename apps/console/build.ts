import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { access, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';

/**
 * Builds the console into dist/, which the API serves. Returns false if the packages that this needs are not installed: they are
 * only for development (`npm ci --omit=dev` leaves them out). Throws if the build fails; its output goes to stderr.
 */
export async function buildConsole(): Promise<boolean> {
  const vite = findVite();
  if (vite === null) return false;
  // A clean clone has no generated files, and the pages import some of them.
  await run([path.join(import.meta.dirname, 'generate.ts')]);
  // A separate folder, because a server can read dist/ at the same time, or another build can write it.
  const built = path.join(import.meta.dirname, `dist.${process.pid}.${randomUUID()}`);
  // A separate process, because the build sets NODE_ENV.
  await run([vite, 'build', import.meta.dirname, '--outDir', built, '--emptyOutDir', '--logLevel', 'warn']);
  await replaceBy(built);
  return true;
}

async function replaceBy(built: string): Promise<void> {
  const dist = path.join(import.meta.dirname, 'dist');
  const before = `${built}.before`;
  await rename(dist, before).catch(() => undefined); // There is none before the first build.
  try {
    await rename(built, dist);
  } catch (error) {
    // Another build was faster, with the same result.
    if (!(await isConsoleBuilt())) throw error;
    await rm(built, { recursive: true, force: true });
  }
  await rm(before, { recursive: true, force: true });
}

async function run(args: readonly string[]): Promise<void> {
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'inherit', 'inherit'] });
  const [code] = (await once(child, 'exit')) as [number | null];
  if (code !== 0) throw new Error('the console cannot be built; what was wrong is printed above');
}

function findVite(): string | null {
  try {
    return path.join(path.dirname(createRequire(import.meta.url).resolve('vite/package.json')), 'bin/vite.js');
  } catch {
    return null;
  }
}

/** Whether the console was built. It can be older than its source. */
export const isConsoleBuilt = (): Promise<boolean> =>
  access(path.join(import.meta.dirname, 'dist/index.html')).then(
    () => true,
    () => false,
  );

if (import.meta.main) {
  if (await buildConsole()) console.error('the console is built: the API serves it at /console');
  else console.error('the console is not built, because the packages for development are not installed');
}
