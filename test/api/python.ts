import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';

const root = path.resolve(import.meta.dirname, '../..');
const ofFolder = path.join(root, '.venv/bin/python3');

/** The Python of the virtual environment in `.venv`, if there is one (CONTRIBUTING.md), or else of this machine. */
export const python = existsSync(ofFolder) ? ofFolder : 'python3';

/** Whether Python has a package, in exactly this version if one is given. False where there is no Python. */
export function hasPackage(name: string, version?: string): boolean {
  const code = 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))';
  try {
    const found = execFileSync(python, ['-c', code, name], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    return version === undefined || found.trim() === version;
  } catch {
    return false;
  }
}
