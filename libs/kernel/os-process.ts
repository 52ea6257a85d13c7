import { readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';

// A process can find out that another one of its host has ended. Names contain the boot and the PID namespace, because a
// PID means something else after a restart of the host and in every container.

const namespace = findNamespace();

function findNamespace(): string | null {
  try {
    // A mount of /proc for another namespace has other PIDs.
    if (readlinkSync('/proc/self') !== String(process.pid)) return null;
    const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return `${hostname()} ${bootId} ${readlinkSync('/proc/self/ns/pid')}`;
  } catch {
    return null; // not Linux
  }
}

/** The name of a process for other processes of this host. Null where the system does not support it. */
export const nameOsProcess = (pid: number = process.pid): string | null =>
  namespace === null ? null : `${namespace} ${pid}`;

/** True if a named process of this host and PID namespace does not exist any more. False if that cannot be known. */
export function hasEnded(name: string): boolean {
  const pid = Number(name.slice(name.lastIndexOf(' ') + 1));
  if (name !== nameOsProcess(pid)) return false;
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    // A process of another user exists as well, but gives EPERM.
    return error instanceof Error && 'code' in error && error.code === 'ESRCH';
  }
}
