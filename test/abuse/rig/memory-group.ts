import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';

/** The limit of each container in compose: `mem_limit: 1g`. */
export const memoryLimitBytes = 1_073_741_824;

/** A memory limit for one process and its children. */
export type MemoryGroup = {
  /** A prefix for the command that is to run inside (startRigProcess). */
  launcher: readonly string[];
  /** Flags for Node, where it cannot see the limit by itself. */
  flags: readonly string[];
  /** How many processes the kernel has killed because of the limit. */
  kills(): number;
  /** Resolves when no process is left in it. */
  remove(): void;
};

type Hierarchy = {
  folder: string;
  /** The files of a group: the memory limit, the limit of swap (alone or with memory), and the number of kills. */
  limit: string;
  swap: readonly [file: string, value: string];
  kills: string;
};

// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and …/cgroup-v2.html
const versions = [
  {
    version: 'v1',
    mount: '/sys/fs/cgroup/memory',
    ownPath: /^\d+:memory:(.*)$/m,
    limit: 'memory.limit_in_bytes',
    swap: ['memory.memsw.limit_in_bytes', String(memoryLimitBytes)],
    kills: 'memory.oom_control',
  },
  {
    version: 'v2',
    mount: '/sys/fs/cgroup',
    ownPath: /^0::(.*)$/m,
    limit: 'memory.max',
    swap: ['memory.swap.max', '0'],
    kills: 'memory.events',
  },
] as const;

/**
 * Returns how memory can be limited here: `cgroup v1` or `v2`, or null where groups cannot be created (no root, no
 * Linux, a read-only mount), and how to create one. Without groups Node gets the heap limit that it would choose in 1
 * GiB, and the resident memory must be measured instead.
 */
export function findMemoryGroups(): { kind: string | null; create(name: string): MemoryGroup } {
  for (const { version, mount, ownPath, ...files } of versions) {
    const own = ownPath.exec(readOrEmpty('/proc/self/cgroup'))?.[1] ?? '/';
    // Below our own group if possible, so that the limits around us still apply. v2 allows no group below one that has
    // processes, so there it is created beside ours or further up.
    for (let at = own; ; at = path.dirname(at)) {
      const parent = path.join(mount, at);
      const made = tryGroup(path.join(parent, `sluice-abuse-${process.pid}-probe`), files);
      if (made !== null) {
        made.remove();
        return {
          kind: `cgroup ${version}`,
          create(name) {
            const group = tryGroup(path.join(parent, `sluice-abuse-${process.pid}-${name}`), files);
            if (group === null) throw new Error(`no cgroup could be made in ${parent}`);
            return group;
          },
        };
      }
      if (at === '/' || at === '.') break;
    }
  }
  const unlimited: MemoryGroup = {
    launcher: [],
    flags: ['--max-old-space-size=512'],
    kills: () => 0,
    remove: () => {},
  };
  return { kind: null, create: () => unlimited };
}

function tryGroup(folder: string, files: Omit<Hierarchy, 'folder'>): MemoryGroup | null {
  const remove = (): void => {
    try {
      rmdirSync(folder);
    } catch {
      // A process that was just killed is still in it. An empty group that is left behind costs nothing.
    }
  };
  try {
    mkdirSync(folder);
  } catch {
    return null;
  }
  try {
    // cgroup files exist only if the controller is enabled; writeFileSync would fail to create one.
    writeFileSync(path.join(folder, files.limit), String(memoryLimitBytes), { flag: 'r+' });
    const [swapFile, swapValue] = files.swap;
    if (existsSync(path.join(folder, swapFile))) writeFileSync(path.join(folder, swapFile), swapValue, { flag: 'r+' });
  } catch {
    remove();
    return null;
  }
  return {
    // The shell enters the group and replaces itself by the program, which sees the limit from its start: Node sizes
    // its heap by it, in v1 and v2 alike (uv_get_constrained_memory).
    launcher: ['/bin/sh', '-c', 'echo $$ >"$0" && exec "$@"', path.join(folder, 'cgroup.procs')],
    flags: [],
    kills: () => Number(/^oom_kill (\d+)$/m.exec(readOrEmpty(path.join(folder, files.kills)))?.[1] ?? 0),
    remove,
  };
}

function readOrEmpty(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}
