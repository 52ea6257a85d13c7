import type { BatchPlace } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import type { Credential } from './choose-credential.ts';

/** What a batch stores of one credential. A caller's own key is stored, encrypted, as a secret of this batch. */
export async function storePlace(
  secrets: Secrets,
  unit: UnitOfWork,
  owner: { workspaceId: string; ownerId: string },
  credential: Credential,
): Promise<BatchPlace> {
  switch (credential.type) {
    case 'none':
      return { type: 'none' };
    case 'virtual_key':
      return { type: 'virtual_key', virtual_key_id: credential.key.id };
    case 'provider': {
      const { provider, customHost, apiKey, settings, secrets: others } = credential;
      const members = { ...others, ...(apiKey && { key: apiKey }) };
      const secretId = Object.keys(members).length > 0 ? await secrets.store(unit, owner, members) : null;
      const hasSettings = Object.keys(settings).length > 0;
      return {
        type: 'provider',
        provider,
        custom_host: customHost,
        secret_id: secretId,
        ...(hasSettings ? { settings: { ...settings } } : {}),
      };
    }
  }
}

/** The secrets that a batch's target refers to. */
export function secretIdsOf(place: BatchPlace): string[] {
  return place.type === 'provider' && place.secret_id !== null ? [place.secret_id] : [];
}
