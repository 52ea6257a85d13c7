import { embeddedPostgresError } from './embedded-error.ts';
import { runProgram, type Identity } from './run-program.ts';

/**
 * Tried in this order when this process runs as root. The last one exists on every system, but other services can run as the
 * same user.
 */
const candidateNames = ['sluice', 'postgres', 'nobody'];

type ServerUserOptions = {
  /** The user ID of this process, from process.getuid(). */
  ownUid: number;
  /** The owner of the existing data directory; undefined before the first start. */
  owner: { uid: number; gid: number } | undefined;
  /**
   * The name of the user to run the server as when this process runs as root. Default: the first of `candidateNames` that
   * exists.
   */
  serverUser?: string | undefined;
  dataDir: string;
};

/**
 * Chooses the user that the server runs as. Postgres refuses to run as root, so root needs an ordinary user for it: the
 * owner of an existing data directory, or otherwise a known user name. (A user ID alone is not enough, because initdb
 * looks up its name.) An ordinary user runs the server under its own account. Throws if the data directory belongs to
 * another user, or if there is no suitable user.
 */
export async function chooseServerUser(options: ServerUserOptions): Promise<Identity> {
  const { ownUid, owner, dataDir } = options;
  if (ownUid !== 0) {
    if (owner === undefined || owner.uid === ownUid) return {};
    throw embeddedPostgresError(
      `The database in ${dataDir} belongs to the user ID ${owner.uid}, but this process runs as ${ownUid}. Start it as that user or as root, or choose another SLUICE_DATA_DIR.`,
    );
  }
  if (owner !== undefined && owner.uid !== 0) return owner;
  for (const name of options.serverUser === undefined ? candidateNames : [options.serverUser]) {
    const identity = await lookUp(name);
    if (identity !== undefined) return identity;
  }
  throw embeddedPostgresError(
    'Postgres refuses to run as root and no ordinary user was found to run it ' +
      `(${options.serverUser ?? candidateNames.join(', ')}). Start Sluice as an ordinary user, or set DATABASE_URL.`,
  );
}

/** Uses the `id` command, because Node cannot look up users. It also knows users that are not in /etc/passwd. */
async function lookUp(name: string): Promise<{ uid: number; gid: number } | undefined> {
  const [user, group] = await Promise.all([runProgram('id', ['-u', name]), runProgram('id', ['-g', name])]);
  const uid = Number(user.output);
  const gid = Number(group.output);
  return user.ok && group.ok && uid > 0 && Number.isSafeInteger(gid) ? { uid, gid } : undefined;
}
