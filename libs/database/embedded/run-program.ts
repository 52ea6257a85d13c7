import { spawn } from 'node:child_process';

/**
 * The user that a program runs as; empty: the user of this process. Node drops the supplementary groups together with a
 * uid.
 */
export type Identity = { uid?: number; gid?: number };

/**
 * The environment of every program of the embedded server. It contains nothing from our own environment, which has
 * secrets, and sets a language in which messages can be recognised.
 */
export const programEnvironment = { LC_ALL: 'C', TZ: 'UTC', PATH: '/usr/local/bin:/usr/bin:/bin' };

export type ProgramResult = { ok: boolean; output: string };

/**
 * Runs a program to its end and returns whether it exited 0, with the last `outputLengthMax` characters of its output
 * (default 16 Ki). Never throws: a program that cannot be started (absent, not reachable for that user) is a result
 * too. The program is killed after `timeoutMs`.
 */
export function runProgram(
  file: string,
  args: readonly string[],
  options: { identity?: Identity; timeoutMs?: number; outputLengthMax?: number } = {},
): Promise<ProgramResult> {
  const { identity = {}, timeoutMs = 120_000, outputLengthMax = 16_384 } = options;
  return new Promise((resolve) => {
    let output = '';
    const collect = (text: string): void => {
      output = (output + text).slice(-outputLengthMax);
    };
    const finish = (ok: boolean): void => resolve({ ok, output: output.trim() });
    try {
      // `cwd`: the other user might not be able to enter our own working directory.
      const child = spawn(file, args, {
        ...identity,
        cwd: '/',
        env: programEnvironment,
        stdio: ['ignore', 'pipe', 'pipe'],
        timeout: timeoutMs,
        killSignal: 'SIGKILL',
      });
      child.stdout.setEncoding('utf8').on('data', collect);
      child.stderr.setEncoding('utf8').on('data', collect);
      child.on('error', (error) => {
        collect(error.message);
        finish(false);
      });
      child.on('close', (code, signal) => {
        if (signal !== null) collect(`\nended by ${signal}`);
        finish(code === 0);
      });
    } catch (error) {
      // spawn throws synchronously for some errors, such as a uid that this container does not map (EINVAL).
      collect(error instanceof Error ? error.message : 'cannot be started');
      finish(false);
    }
  });
}
