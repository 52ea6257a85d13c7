import { spawn, spawnSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { S3BlobStoreOptions } from '#libs/blobs/s3-blob-store.ts';
import { hasPackage, python } from './api/python.ts';
import { freePort } from './free-port.ts';
import { listens } from './listens.ts';

export type S3Kind = 'moto' | 'versitygw';

export type S3Server = {
  endpoint: string;
  options: S3BlobStoreOptions;
  credentials: Readonly<Record<string, string>>;
  /** Stops answering for this time. */
  hang: (forMs: number) => Promise<void>;
  stop: () => Promise<void>;
};

/** Why the server cannot be started here, or null. */
export function missingS3(kind: S3Kind): string | null {
  if (kind === 'moto') return hasPackage('moto') ? null : 'needs the package moto in .venv (CONTRIBUTING.md)';
  const isInstalled = spawnSync('versitygw', ['--version']).error === undefined;
  return isInstalled ? null : 'needs versitygw in the path';
}

/** Also the credentials of this process, from which the SDK takes them. */
const s3Credentials = { AWS_ACCESS_KEY_ID: 'sluice-test', AWS_SECRET_ACCESS_KEY: 'sluice-test-secret' };

/** Starts a server on a free port, with one bucket. */
export async function startS3(kind: S3Kind): Promise<S3Server> {
  Object.assign(process.env, s3Credentials);
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-s3-'));
  const port = await freePort();
  const [program, ...rest] =
    kind === 'moto'
      ? [python, '-c', 'from moto.server import main; main()', '-H', '127.0.0.1', '-p', String(port)]
      : ['versitygw', '--port', `127.0.0.1:${port}`, 'posix', folder];
  const root = {
    ROOT_ACCESS_KEY: s3Credentials.AWS_ACCESS_KEY_ID,
    ROOT_SECRET_KEY: s3Credentials.AWS_SECRET_ACCESS_KEY,
  };
  const child = spawn(program ?? '', rest, { stdio: 'ignore', env: { ...process.env, ...root } });
  const exited = once(child, 'exit');
  const stop = async (): Promise<void> => {
    child.kill('SIGKILL');
    await exited;
    await rm(folder, { recursive: true, force: true });
  };
  try {
    while (!(await listens(port))) {
      if (child.exitCode !== null) throw new Error(`${kind} ended with status ${child.exitCode}`);
      await delay(50);
    }
    const endpoint = `http://127.0.0.1:${port}`;
    const options = { bucket: 'sluice-test', prefix: 'blobs/', endpoint, region: 'us-east-1', pathStyle: true };
    const { S3Client, CreateBucketCommand } = await import('@aws-sdk/client-s3');
    const client = new S3Client({ endpoint, region: options.region, forcePathStyle: true });
    await client.send(new CreateBucketCommand({ Bucket: options.bucket }));
    const hang = async (forMs: number): Promise<void> => {
      child.kill('SIGSTOP');
      await delay(forMs);
      child.kill('SIGCONT');
    };
    return { endpoint, options, credentials: s3Credentials, hang, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}
