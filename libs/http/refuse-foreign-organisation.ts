import { GatewayError } from '#libs/kernel/errors.ts';
import { organisationId } from './caller.ts';

/** Throws not_found for the ID of another organisation than that of this installation. */
export function refuseForeignOrganisation(wanted: string | undefined): void {
  if (wanted === undefined || wanted === organisationId) return;
  const message = `There is no organisation '${wanted.slice(0, 100)}': this installation is '${organisationId}'.`;
  throw new GatewayError('not_found', 'organisation_not_found', message, { param: 'organisation_id' });
}
