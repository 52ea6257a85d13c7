import type { WebhookEventType } from '#libs/contracts/webhooks.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { Checked } from '#libs/records/kit.ts';
import type { Authors } from '#libs/records/resource-row.ts';
import type { CheckContext } from '#libs/resources/define-kind.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { createSigningSecret } from './post-signed.ts';

export type WebhookEndpointData = Authors & {
  name: string;
  url: string;
  event_types: WebhookEventType[];
  status: 'enabled' | 'disabled';
  signing_secret_hint: string;
  /** Until when the previous secret also signs, ISO 8601; null: there is none. */
  previous_secret_until: string | null;
};

/** A rotation of the signing secret. */
export type NewSecret = { secret: Secret; keepsPrevious: boolean };

const previousSecretMs = 86_400_000;

/** The secrets to store for a new endpoint or a rotation. Nothing for other changes. */
export async function storedSecrets(
  rotated: NewSecret | undefined,
  { row, readSecrets, unit }: Pick<CheckContext<WebhookEndpointData>, 'row' | 'readSecrets' | 'unit'>,
): Promise<Checked<WebhookEndpointData>> {
  if (row !== null && rotated === undefined) return { data: {} };
  const { secret, keepsPrevious } = rotated ?? { secret: createSigningSecret(), keepsPrevious: false };
  const previous = keepsPrevious ? (await readSecrets())?.['signing_secret'] : undefined;
  const until = previous === undefined ? null : new Date(unit.now.getTime() + previousSecretMs).toISOString();
  return {
    data: { signing_secret_hint: `whsec_…${secret.lastFour()}`, previous_secret_until: until },
    secrets: { signing_secret: secret, ...(previous === undefined ? {} : { previous_secret: previous }) },
    ...(row === null ? { shownOnce: { signing_secret: secret.reveal() } } : {}),
  };
}

/** The secrets that sign a delivery at this time. */
export function signingSecrets(
  { previous_secret_until: until }: Pick<WebhookEndpointData, 'previous_secret_until'>,
  members: SecretMembers,
  nowMs: number,
): Secret[] {
  const { signing_secret: current, previous_secret: previous } = members;
  const isPreviousValid = until !== null && Date.parse(until) > nowMs;
  return [current, ...(isPreviousValid ? [previous] : [])].filter((secret) => secret !== undefined);
}

/** A time as OpenAI's clients expect it. */
export const seconds = (time: Date): number => Math.floor(time.getTime() / 1_000);

/** The ID of a delivered event: that of the event in the log, in OpenAI's form. */
export const webhookId = (eventId: string): string => `evt_${eventId.replaceAll('-', '')}`;
