import { createCipheriv, createDecipheriv, createSecretKey, randomBytes, type KeyObject } from 'node:crypto';
import type { Kysely, Selectable } from 'kysely';
import type { Database, SecretTable } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { newId } from '#libs/kernel/ids.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { MasterKeys } from './master-key.ts';

/** The secret members of one credential, by the names of their settings; `key` is the usual API key. */
export type SecretMembers = Readonly<Record<string, Secret>>;

/**
 * The owner of the secret. It is bound into the ciphertext, so that a row moved to another owner or workspace cannot be
 * opened.
 */
export type SecretOwner = { workspaceId: string; ownerId: string };

export type SealedSecret = Pick<
  Selectable<SecretTable>,
  'id' | 'workspace_id' | 'owner_id' | 'master_key_id' | 'wrapped_key' | 'ciphertext'
>;

export type Secrets = {
  /** Encrypts the members as one document into a new row, in the caller's transaction; returns the row's id. */
  store(unit: Pick<UnitOfWork, 'tx' | 'now'>, owner: SecretOwner, members: SecretMembers): Promise<string>;
  /** The members of a workspace's secret; undefined when there is no such row. Throws SecretUnreadableError. */
  read(db: Kysely<Database>, workspaceId: string, id: string): Promise<SecretMembers | undefined>;
  /** Like `read`, by its owner. */
  readOwned(db: Kysely<Database>, owner: SecretOwner): Promise<SecretMembers | undefined>;
  /**
   * Removes the ciphertext and its data key, which makes the secret unrecoverable. Has no effect if there is no row.
   */
  remove(unit: Pick<UnitOfWork, 'tx'>, id: string): Promise<void>;
  /** Removes everything that is stored for an owner. */
  removeOwned(unit: Pick<UnitOfWork, 'tx'>, owner: SecretOwner): Promise<void>;
  /** Decrypts a row that was already read. Throws SecretUnreadableError. */
  open(row: SealedSecret): SecretMembers;
  /**
   * Encrypts a row again, under a new data key that the newest master key wraps. false: the row was deleted or changed
   * meanwhile, and stays unchanged. Throws SecretUnreadableError.
   */
  rewrap(db: Kysely<Database>, row: SealedSecret): Promise<boolean>;
};

/** A row that cannot be opened: changed, moved to another owner, or wrapped by another master key. */
export class SecretUnreadableError extends Error {
  override readonly name = 'SecretUnreadableError';
}

const cipher = 'aes-256-gcm';
const formatVersion = 1;
const nonceBytes = 12; // NIST SP 800-38D: 96 bits, random. Each data key seals only one document.
const tagBytes = 16;

/**
 * Provider credentials at rest: each document is sealed with AES-256-GCM under a separate data key, which the newest
 * master key wraps. The row's identity and the master key's ID are authenticated with both, so that a sealed document
 * moved to another row, or to another master key, cannot be opened.
 */
export function createSecrets({ masterKeys }: { masterKeys: MasterKeys }): Secrets {
  const [newest] = masterKeys;
  const open = (row: SealedSecret): SecretMembers => {
    const masterKey = masterKeys.find(({ id }) => id === row.master_key_id);
    if (!masterKey) {
      throw new SecretUnreadableError(`secret ${row.id} is wrapped by the master key ${row.master_key_id}`);
    }
    try {
      const dataKey = createSecretKey(decrypt(masterKey.key, row.wrapped_key, identityOf(row, 'data key')));
      return fromDocument(decrypt(dataKey, row.ciphertext, identityOf(row, 'document')));
    } catch (error) {
      // OpenSSL's own message adds no information, and a JSON error could quote the document.
      if (error instanceof SecretUnreadableError) throw error;
      throw new SecretUnreadableError(`secret ${row.id} does not open: the row was changed or belongs elsewhere`);
    }
  };

  const seal = (row: Omit<Identity, 'master_key_id'>, members: SecretMembers): SealedSecret => {
    const identity = { ...row, master_key_id: newest.id };
    const dataKey = randomBytes(32);
    const sealed = {
      ...identity,
      wrapped_key: encrypt(newest.key, dataKey, identityOf(identity, 'data key')),
      ciphertext: encrypt(createSecretKey(dataKey), toDocument(members), identityOf(identity, 'document')),
    };
    dataKey.fill(0);
    return sealed;
  };

  return {
    open,
    async rewrap(db, row) {
      const { id, workspace_id, owner_id } = row;
      const { master_key_id, wrapped_key, ciphertext } = seal({ id, workspace_id, owner_id }, open(row));
      const { numUpdatedRows } = await db
        .updateTable('secret')
        .set({ master_key_id, wrapped_key, ciphertext })
        .where('id', '=', id)
        .where('master_key_id', '=', row.master_key_id)
        .executeTakeFirst();
      return numUpdatedRows > 0n;
    },
    async store(unit, { workspaceId, ownerId }, members) {
      const sealed = seal({ id: newId('secret_'), workspace_id: workspaceId, owner_id: ownerId }, members);
      const row = { ...sealed, created_at: unit.now };
      await unit.tx.insertInto('secret').values(row).execute();
      return row.id;
    },
    async read(db, workspaceId, id) {
      const query = db.selectFrom('secret').selectAll().where('id', '=', id).where('workspace_id', '=', workspaceId);
      const row = await query.executeTakeFirst();
      return row && open(row);
    },
    async readOwned(db, { workspaceId, ownerId }) {
      const query = db.selectFrom('secret').selectAll().where('owner_id', '=', ownerId);
      const row = await query.where('workspace_id', '=', workspaceId).executeTakeFirst();
      return row && open(row);
    },
    async removeOwned({ tx }, { workspaceId, ownerId }) {
      const query = tx.deleteFrom('secret').where('owner_id', '=', ownerId).where('workspace_id', '=', workspaceId);
      await query.execute();
    },
    async remove({ tx }, id) {
      await tx.deleteFrom('secret').where('id', '=', id).execute();
    },
  };
}

type Identity = Pick<SealedSecret, 'id' | 'workspace_id' | 'owner_id' | 'master_key_id'>;

/** The additional authenticated data. JSON separates the fields, so no two identities have the same text. */
function identityOf(row: Identity, purpose: 'data key' | 'document'): Buffer {
  const { id, workspace_id, owner_id, master_key_id } = row;
  return Buffer.from(
    JSON.stringify(['sluice', formatVersion, 'secret', purpose, workspace_id, owner_id, id, master_key_id]),
  );
}

/** Layout: version, nonce, tag, ciphertext. */
function encrypt(key: KeyObject, plain: Buffer, identity: Buffer): Buffer {
  const nonce = randomBytes(nonceBytes);
  const encryption = createCipheriv(cipher, key, nonce, { authTagLength: tagBytes }).setAAD(identity);
  const body = Buffer.concat([encryption.update(plain), encryption.final()]);
  return Buffer.concat([Buffer.of(formatVersion), nonce, encryption.getAuthTag(), body]);
}

function decrypt(key: KeyObject, sealed: Buffer, identity: Buffer): Buffer {
  const bodyStart = 1 + nonceBytes + tagBytes;
  if (sealed[0] !== formatVersion || sealed.length < bodyStart) throw new RangeError('not a sealed value');
  const decryption = createDecipheriv(cipher, key, sealed.subarray(1, 1 + nonceBytes), { authTagLength: tagBytes });
  decryption.setAAD(identity).setAuthTag(sealed.subarray(1 + nonceBytes, bodyStart));
  return Buffer.concat([decryption.update(sealed.subarray(bodyStart)), decryption.final()]);
}

function toDocument(members: SecretMembers): Buffer {
  return Buffer.from(
    JSON.stringify(Object.fromEntries(Object.entries(members).map(([name, secret]) => [name, secret.reveal()]))),
  );
}

function fromDocument(plain: Buffer): SecretMembers {
  const document = JSON.parse(plain.toString('utf8')) as Record<string, string>;
  return Object.fromEntries(Object.entries(document).map(([name, value]) => [name, new Secret(value)]));
}
